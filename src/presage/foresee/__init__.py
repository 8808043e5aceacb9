"""What deep-learning jobs will need, foreseen from what is known before they run."""
