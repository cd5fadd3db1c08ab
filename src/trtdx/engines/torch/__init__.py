"""torch modules and Hugging Face models, tapped without an edit."""
