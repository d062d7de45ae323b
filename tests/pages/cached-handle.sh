# A client has asked the cache.
hdl resolve 10.1000/1 --server 127.0.0.1
