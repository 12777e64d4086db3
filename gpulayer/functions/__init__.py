"""`gl.remote`: functions and classes that run where they fit, and `.map` over every slot that is free.

Nothing here is imported by `import gpulayer`: `gl.remote` loads it when it is first used.
"""
