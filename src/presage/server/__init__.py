"""The control plane: the scheduling core as a service. `app.py` puts the parts together."""
