"""The commands of ``vitrine``, one module each."""
