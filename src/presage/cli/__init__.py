"""Thin commands over the rest of Presage; only here and in the server are its parts composed."""
