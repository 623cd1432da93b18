"""Known vulnerabilities of images: what is installed in them, advisories, and what follows from both."""
