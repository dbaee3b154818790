"""How nodes find and reach one another."""
