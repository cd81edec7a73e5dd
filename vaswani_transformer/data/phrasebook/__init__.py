"""The built-in synthetic corpus: a small grammar that writes English and German."""
