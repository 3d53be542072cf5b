RETRIES = 9  # of the connection to the database


def main():
    from net import client

    client.start()
