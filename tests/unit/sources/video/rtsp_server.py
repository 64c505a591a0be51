"""A GStreamer RTSP server on the loopback interface whose mounts misbehave. Runs in the system's Python, which has gi.

    python3 rtsp_server.py PORT

Mounts: ``/good/N`` gives 25 frames a second for ever; ``/cut`` ends after 2 s; ``/stall`` gives 2 s and then nothing,
the connection stays; ``/resize`` is 320x240 for a client, then 640x480 for the next one, and so on in turn.
"""

from __future__ import annotations

import sys

import gi

gi.require_version("Gst", "1.0")
gi.require_version("GstRtspServer", "1.0")
from gi.repository import GLib, Gst, GstRtspServer  # noqa: E402

ENCODE = "x264enc tune=zerolatency speed-preset=ultrafast key-int-max=10 threads=1 ! rtph264pay name=pay0 pt=96"
GOOD = 32


def launch(size: str, *, buffers: int = -1) -> str:
    source = f"videotestsrc is-live=true pattern=ball num-buffers={buffers}"
    return f"( {source} ! video/x-raw,{size},framerate=25/1 ! {ENCODE} )"


class Stalling(GstRtspServer.RTSPMediaFactory):
    """After 2 s nothing comes any more, and nobody says so."""

    def do_configure(self, media: GstRtspServer.RTSPMedia) -> None:
        pay = media.get_element().get_by_name_recurse_up("pay0") or media.get_element().get_by_name("pay0")
        self.count = 0

        def drop(_pad: Gst.Pad, _info: Gst.PadProbeInfo) -> Gst.PadProbeReturn:
            self.count += 1
            return Gst.PadProbeReturn.OK if self.count < 50 else Gst.PadProbeReturn.DROP

        pay.get_static_pad("sink").add_probe(Gst.PadProbeType.BUFFER, drop)


class Resizing(GstRtspServer.RTSPMediaFactory):
    """Another size for every connection; each ends after 2 s."""

    count = 0

    def do_create_element(self, _url: object) -> Gst.Element:
        size = "width=320,height=240" if self.count % 2 == 0 else "width=640,height=480"
        self.count += 1
        return Gst.parse_launch(launch(size, buffers=50))


def main(port: str) -> None:
    Gst.init(None)
    server = GstRtspServer.RTSPServer()
    server.set_address("127.0.0.1")
    server.set_service(port)
    mounts = server.get_mount_points()

    def add(path: str, factory: GstRtspServer.RTSPMediaFactory, text: str | None, *, shared: bool = False) -> None:
        if text is not None:
            factory.set_launch(text)
        factory.set_shared(shared)
        mounts.add_factory(path, factory)

    small = "width=160,height=120"
    for number in range(GOOD):
        add(f"/good/{number}", GstRtspServer.RTSPMediaFactory(), launch(small))
    add("/cut", GstRtspServer.RTSPMediaFactory(), launch(small, buffers=50))
    add("/stall", Stalling(), launch(small))
    add("/resize", Resizing(), None)
    if not server.attach(None):
        sys.exit("the port is taken")
    print("ready", flush=True)
    GLib.MainLoop().run()


if __name__ == "__main__":
    main(sys.argv[1])
