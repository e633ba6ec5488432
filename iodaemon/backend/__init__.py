"""What carries decisions out: one module or package a backend; its name is the registry."""
