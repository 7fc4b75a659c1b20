"""The Flower app of a site: a data owner among several institutions.

It only carries packets to the site worker (`dpfed.federation`), which holds the records and does the work.
"""
