"""The viewer: a web page that shows one results folder; it loads no models."""
