"""What is on each dashboard: one module per dashboard, each a list of panels."""
