"""Recipes of published runs, with a source for each value, and shared base configurations."""

from largebatch.config.recipes import families
from largebatch.config.recipes.families import imagenet, polynomial
from largebatch.config.recipes.recipe import (
    TAGS,
    UNVERIFIED,
    Published,
    Recipe,
    all_recipes,
    load_recipe,
    sources,
)

__all__ = [
    "TAGS",
    "UNVERIFIED",
    "Published",
    "Recipe",
    "all_recipes",
    "families",
    "imagenet",
    "load_recipe",
    "polynomial",
    "sources",
]
