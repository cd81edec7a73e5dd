"""Export a model to CTranslate2 and to ONNX."""
