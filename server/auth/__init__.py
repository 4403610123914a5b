"""Who may read and write what: tokens, JSON Web Tokens, and signed tickets."""
