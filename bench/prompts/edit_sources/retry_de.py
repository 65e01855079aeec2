import random
import time


def fetch_with_retry(fetch, url, attempts=5, base_delay=0.5):
    """Ruft eine Adresse ab und versucht es bei Fehlern erneut.

    Die Wartezeit verdoppelt sich nach jedem Fehlschlag.
    """
    delay = base_delay
    for attempt in range(1, attempts + 1):
        try:
            return fetch(url)
        except ConnectionError:
            # Nach dem letzten Versuch wird der Fehler weitergegeben.
            if attempt == attempts:
                raise
            # Etwas Zufall verhindert, dass alle gleichzeitig wiederkommen.
            time.sleep(delay + random.uniform(0, base_delay))
            delay *= 2


def fetch_all(fetch, urls):
    """Ruft alle Adressen ab; fehlerhafte werden übersprungen."""
    pages = {}
    for url in urls:
        try:
            pages[url] = fetch_with_retry(fetch, url)
        except ConnectionError:
            # Eine Seite, die fehlt, soll die anderen nicht aufhalten.
            continue
    return pages
