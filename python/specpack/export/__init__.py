"""`specpack export`: the series as commits on a SGLang source tree."""
