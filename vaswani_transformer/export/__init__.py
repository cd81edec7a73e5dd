"""The model for other engines: CTranslate2 and ONNX."""
