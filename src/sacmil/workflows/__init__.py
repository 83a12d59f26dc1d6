"""Complete workflows; the only package that joins extraction and models."""
