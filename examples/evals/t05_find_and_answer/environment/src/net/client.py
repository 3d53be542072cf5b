from .limits import UPLOAD

TIMEOUT = 30


def upload(send, file):
    for attempt in range(1 + UPLOAD.again):
        if send(file):
            return attempt
    raise OSError("the upload failed")
