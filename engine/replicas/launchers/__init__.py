"""Where the processes of a replica run. Only starting and ending them differs from place to place."""
