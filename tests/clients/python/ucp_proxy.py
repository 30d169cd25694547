"""A way to a gateway that adds a credential: for programs that know none. Speaks TLS 1.3 to the gateway and plain HTTP to the program."""

import http.server
import json
import ssl
import threading
import urllib.error
import urllib.request

# What belongs to one connection, and what is made anew.
OWN = {"host", "connection", "content-length", "transfer-encoding", "accept-encoding"}
PROFILE = "/.well-known/ucp"
# Documents that have to lie at the address that they name.
METADATA = "/.well-known/oauth-"


class NoRedirects(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *_):
        return None


class Proxy:
    """Listens on a free port of loopback until it is closed. `url` is where."""

    def __init__(self, demo, key):
        context = ssl.create_default_context(cafile=demo["ca_file"])
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        opener = urllib.request.build_opener(
            NoRedirects, urllib.request.ProxyHandler({}), urllib.request.HTTPSHandler(context=context)
        )
        plain, guarded = demo["base_url"].encode(), demo["tls_url"].encode()
        proxy = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def answer(self):
                length = int(self.headers.get("Content-Length") or 0)
                body = self.rfile.read(length) if length else None
                headers = {name: value for name, value in self.headers.items() if name.lower() not in OWN}
                headers.setdefault("Authorization", f"Bearer {key}")
                request = urllib.request.Request(
                    demo["tls_url"] + self.path, data=body, headers=headers, method=self.command
                )
                try:
                    answer = opener.open(request, timeout=60)
                except urllib.error.HTTPError as error:
                    answer = error
                # The gateway names itself by its plain address; this program came to it by the guarded one.
                own = self.path.startswith(METADATA)
                text = answer.read().replace(plain, proxy.url.encode() if own else guarded)
                if self.path == PROFILE:
                    profile = json.loads(text)
                    for service in profile["ucp"]["services"]["dev.ucp.shopping"]:
                        service["endpoint"] = service["endpoint"].replace(demo["tls_url"], proxy.url)
                    text = json.dumps(profile).encode()
                self.send_response(answer.status)
                for name, value in answer.headers.items():
                    if name.lower() not in OWN:
                        self.send_header(name, value.replace(demo["base_url"], demo["tls_url"]))
                self.send_header("Content-Length", str(len(text)))
                self.end_headers()
                if self.command != "HEAD":
                    self.wfile.write(text)

            do_GET = do_POST = do_PUT = do_DELETE = do_PATCH = do_HEAD = do_OPTIONS = answer

            def log_message(self, *_):
                pass

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def close(self):
        self.server.shutdown()
        self.server.server_close()
