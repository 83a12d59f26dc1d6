"""From predictions to claims, without torch."""
