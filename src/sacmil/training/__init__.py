"""From bags to a trained model."""
