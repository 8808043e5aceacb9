"""Models as operator graphs: read, traced, precomputed, summarised and drawn."""
