"""What `import presage` gives, and what the commands call: one code path for both.

Composes the parts and decides nothing; `presage/__init__.py` says which names are public.
"""
