"""Export a model to CTranslate2."""
