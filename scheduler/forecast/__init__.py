"""When jobs start and end: the live state rolled forward by the same core, in virtual time, over many draws."""
