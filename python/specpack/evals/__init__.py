"""Runs a server, asks it questions, and measures how long its drafts are followed."""
