class Lager:
    """Verwaltet den Bestand eines Lagers."""

    def __init__(self):
        self.bestand = {}
        self.preise = {}

    def einlagern(self, artikel, menge, preis):
        # Nur eine positive Menge kann eingelagert werden.
        if menge <= 0:
            raise ValueError("Die Menge muss positiv sein")
        self.bestand[artikel] = self.bestand.get(artikel, 0) + menge
        self.preise[artikel] = preis

    def entnehmen(self, artikel, menge):
        # Es kann nie mehr entnommen werden, als vorhanden ist.
        vorhanden = self.bestand.get(artikel, 0)
        if menge > vorhanden:
            raise ValueError("Es ist nicht genug im Lager")
        self.bestand[artikel] = vorhanden - menge

    def gesamtwert(self):
        """Summe aller Mengen mal Preise."""
        summe = 0
        for artikel, menge in self.bestand.items():
            summe += menge * self.preise[artikel]
        return summe
