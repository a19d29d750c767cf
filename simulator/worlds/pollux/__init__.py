"""The simulator of the Pollux artifact (OSDI 2021) with its Tiresias and its Optimus, in every detail that affects a
completion time.
"""
