"""The shape of the code: sizes, exports, layout and pages that must agree with it."""
