"""The Flower that dpfed is written for; this file imports nothing of it."""

FLOWER_VERSION = "1.41"
