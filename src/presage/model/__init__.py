"""What exists: frozen values shared by everything else. Imports nothing of ours and no third
party."""
