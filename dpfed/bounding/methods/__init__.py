"""Contains one file for each published method that bounds one record's influence; each file defines `METHOD`."""
