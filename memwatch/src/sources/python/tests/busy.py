"""Never stands still."""
import sys
import threading


def work(number):
    return number if number < 2 else work(number - 1) + work(number - 2)


def forever():
    while True:
        work(30)


sys.setswitchinterval(0.0005)
for _ in range(2):
    threading.Thread(target=forever, daemon=True).start()
print("begun", flush=True)
forever()
