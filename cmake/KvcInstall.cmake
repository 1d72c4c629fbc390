# Written by the packaging part.
