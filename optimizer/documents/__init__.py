"""Problems and answers as documents: what people and other programs write, and what they get back."""
