IVA = 0.21


def calcular_subtotal(lineas):
    """Suma el precio de todas las líneas de la factura."""
    subtotal = 0
    for linea in lineas:
        # Cada línea tiene una cantidad y un precio por unidad.
        subtotal += linea["cantidad"] * linea["precio"]
    return subtotal


def aplicar_descuento(importe, porcentaje):
    """Devuelve el importe después del descuento."""
    if not 0 <= porcentaje <= 100:
        raise ValueError("El porcentaje debe estar entre 0 y 100")
    return importe * (1 - porcentaje / 100)


def calcular_total(lineas, porcentaje=0):
    """Devuelve el total de la factura con impuestos."""
    importe = calcular_subtotal(lineas)
    importe = aplicar_descuento(importe, porcentaje)
    # El impuesto se calcula después del descuento.
    impuesto = importe * IVA
    return round(importe + impuesto, 2)
