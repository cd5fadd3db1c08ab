"""Hugging Face folders: config, quantisation, tokenizer, weights, adapters."""
