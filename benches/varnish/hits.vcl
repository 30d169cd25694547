vcl 4.1;
# A cache of completions as well as stock Varnish can: POST requests told apart by their body, answered from memory.
import std;
import bodyaccess;

backend provider { .host = "127.0.0.1"; .port = "@PROVIDER@"; }

sub vcl_recv {
    # Varnish passes anything with a body or a credential; here both are what is cached.
    std.cache_req_body(64KB);
    set req.http.x-method = req.method;
    return (hash);
}

sub vcl_hash {
    hash_data(req.url);
    bodyaccess.hash_req_body();
    return (lookup);
}

sub vcl_backend_fetch {
    set bereq.method = bereq.http.x-method;
    set bereq.http.authorization = "Bearer @KEY@";
}

sub vcl_backend_response {
    set beresp.ttl = 1d;
    return (deliver);
}
