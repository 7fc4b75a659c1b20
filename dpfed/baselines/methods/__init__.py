"""Methods of bounding for comparison; each file defines `METHOD`, as those of `dpfed.bounding.methods` do."""
