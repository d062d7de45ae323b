# The key of a publisher, which is replaced.
hdl key generate publisher-private.bin publisher-public.bin --plain
