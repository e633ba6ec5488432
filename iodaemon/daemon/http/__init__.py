"""What the API says over HTTP: begin with ``server``; a route is declared once (``route``).

``access`` knows who asks and holds each user to a share; ``submission`` checks what is submitted;
``context`` has what all routes need and finds jobs, ``record`` and ``report`` show them; ``answer``
sends what is large.
"""
