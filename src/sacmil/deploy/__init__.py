"""Shipping a model: as ONNX with a card (export, with torch), and running it (runtime, without)."""
