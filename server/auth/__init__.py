"""Authentication and authorization: tokens, JSON Web Tokens, grants and signed tickets."""
