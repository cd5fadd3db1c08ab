"""What must agree about a model, its tokenizer, weights and adapters."""
