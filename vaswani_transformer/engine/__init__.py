"""Engines, which compute what a model computes, but faster. They need the installed package."""
