/* A scalar interpreter of the machine: one program on one example after the other, one switch an instruction.
 *
 * Written apart from the array machine and from the plain Python reference; sizes are the default ones. Arrays are
 * row-major int32, as vm.Value and vm.Program hold them. Wrapping arithmetic is done on unsigned words.
 */
#include <stdint.h>
#include <string.h>

enum { SLOTS = 8, STACK = 4, WIDTH = 8, ARGS = 16 };
enum { EMPTY, INT, BOOL, LIST };
enum { OK, STACK_UNDERFLOW, TYPE_ERROR, BAD_ARGUMENT, DIVISION_BY_ZERO, EMPTY_LIST, STACK_OVERFLOW, BAD_OPCODE };
enum {
    NOP, INPUT, CONST, DUP, SWAP, POP, ADD, SUB, MUL, DIV, MOD, MIN, MAX, ADDI, SUBI, MULI, DIVI, MODI, NEG, ABS, EQ,
    LT, GT, EQI, LTI, GTI, EVEN, NOT, AND, OR, LEN, SUM, MAXL, MINL, HEAD, LAST, SORT, REV, TAKE, DROP, FGT, FLT,
    FEVEN, SELECT, OPCODES
};

typedef struct {
    int32_t type, length, words[WIDTH];
} Cell;

/* Masks of types that an operand may have. */
enum { I = 1 << INT, B = 1 << BOOL, L = 1 << LIST, N = I | L, ANY = I | B | L };

typedef struct {
    uint8_t arity, types[3], reads_arg;
} Operands;

static const Operands operands[OPCODES] = {
    [NOP] = {0},
    [INPUT] = {0, {0}, 1},
    [CONST] = {0, {0}, 1},
    [DUP] = {1, {ANY}, 0},
    [SWAP] = {2, {ANY, ANY}, 0},
    [POP] = {1, {ANY}, 0},
    [ADD] = {2, {I, I}, 0},
    [SUB] = {2, {I, I}, 0},
    [MUL] = {2, {I, I}, 0},
    [DIV] = {2, {I, I}, 0},
    [MOD] = {2, {I, I}, 0},
    [MIN] = {2, {I, I}, 0},
    [MAX] = {2, {I, I}, 0},
    [ADDI] = {1, {N}, 1},
    [SUBI] = {1, {N}, 1},
    [MULI] = {1, {N}, 1},
    [DIVI] = {1, {N}, 1},
    [MODI] = {1, {N}, 1},
    [NEG] = {1, {N}, 0},
    [ABS] = {1, {N}, 0},
    [EQ] = {2, {I, I}, 0},
    [LT] = {2, {I, I}, 0},
    [GT] = {2, {I, I}, 0},
    [EQI] = {1, {I}, 1},
    [LTI] = {1, {I}, 1},
    [GTI] = {1, {I}, 1},
    [EVEN] = {1, {I}, 0},
    [NOT] = {1, {B}, 0},
    [AND] = {2, {B, B}, 0},
    [OR] = {2, {B, B}, 0},
    [LEN] = {1, {L}, 0},
    [SUM] = {1, {L}, 0},
    [MAXL] = {1, {L}, 0},
    [MINL] = {1, {L}, 0},
    [HEAD] = {1, {L}, 0},
    [LAST] = {1, {L}, 0},
    [SORT] = {1, {L}, 0},
    [REV] = {1, {L}, 0},
    [TAKE] = {1, {L}, 1},
    [DROP] = {1, {L}, 1},
    [FGT] = {1, {L}, 1},
    [FLT] = {1, {L}, 1},
    [FEVEN] = {1, {L}, 0},
    [SELECT] = {3, {ANY, ANY, B}, 0},
};

static int32_t wrap(uint32_t word) { return (int32_t)word; }

/* The divisor is not 0. INT_MIN / -1 would trap, so it is answered apart. */
static int32_t floor_div(int32_t b, int32_t a) {
    if (a == -1) return wrap(0u - (uint32_t)b);
    int32_t quotient = b / a;
    return quotient - ((b % a != 0) && ((b % a < 0) != (a < 0)));
}

static int32_t floor_mod(int32_t b, int32_t a) {
    if (a == -1) return 0;
    int32_t remainder = b % a;
    return remainder != 0 && ((remainder < 0) != (a < 0)) ? remainder + a : remainder;
}

static void set_scalar(Cell *cell, int32_t type, int32_t word) {
    if (cell->length > 1) memset(cell->words, 0, sizeof cell->words);
    cell->type = type;
    cell->length = 1;
    cell->words[0] = word;
}

static void shorten(Cell *cell, int32_t length) {
    for (int32_t i = length; i < cell->length; i++) cell->words[i] = 0;
    cell->length = length;
}

static void keep_range(Cell *cell, int32_t begin, int32_t end) {
    memmove(cell->words, cell->words + begin, (size_t)(end - begin) * sizeof cell->words[0]);
    shorten(cell, end - begin);
}

static int32_t largest(const Cell *cell, int32_t sign) {
    int32_t best = cell->words[0];
    for (int32_t i = 1; i < cell->length; i++)
        if (sign > 0 ? cell->words[i] > best : cell->words[i] < best) best = cell->words[i];
    return best;
}

static void insertion_sort(Cell *cell) {
    for (int32_t i = 1; i < cell->length; i++) {
        int32_t word = cell->words[i], j = i;
        for (; j > 0 && cell->words[j - 1] > word; j--) cell->words[j] = cell->words[j - 1];
        cell->words[j] = word;
    }
}

#define EACH(cell, expression)                         \
    for (int32_t i = 0; i < (cell)->length; i++) {     \
        const int32_t w = (cell)->words[i];            \
        (cell)->words[i] = wrap((uint32_t)(expression)); \
    }

#define KEEP(cell, condition)                                  \
    do {                                                       \
        int32_t kept = 0;                                      \
        for (int32_t i = 0; i < (cell)->length; i++) {         \
            const int32_t w = (cell)->words[i];                \
            if (condition) (cell)->words[kept++] = w;          \
        }                                                      \
        shorten(cell, kept);                                   \
    } while (0)

/* Runs one program; the bottom of the stack is cells[0]. */
static int32_t run(const int32_t *op, const int32_t *arg, const Cell inputs[2], Cell *output, int32_t *pc) {
    Cell guarded[2 + STACK], *const cells = guarded + 2; /* so that the addresses of a and b always exist */
    int32_t depth = inputs[0].type != EMPTY;
    cells[0] = inputs[0];
    int32_t status = OK, slot = 0;
    for (; slot < SLOTS; slot++) {
        const int32_t code = op[slot], k = arg[slot];
        if (code < 0 || code >= OPCODES) {
            status = BAD_OPCODE;
            break;
        }
        const Operands *need = &operands[code];
        if (depth < need->arity) {
            status = STACK_UNDERFLOW;
            break;
        }
        Cell *a = cells + depth - 1, *b = a - 1;
        int32_t wrong = 0;
        for (int32_t i = 0; i < need->arity; i++) wrong |= !(need->types[i] >> a[-i].type & 1);
        if (wrong || (code == SELECT && a->type != b->type)) {
            status = TYPE_ERROR;
            break;
        }
        if (need->reads_arg && (k < 0 || k >= ARGS)) {
            status = BAD_ARGUMENT;
            break;
        }
        switch (code) {
            case NOP: break;
            case INPUT:
                if (k > 1 || inputs[k].type == EMPTY) status = BAD_ARGUMENT;
                else if (depth == STACK) status = STACK_OVERFLOW;
                else cells[depth++] = inputs[k];
                break;
            case CONST:
                if (depth == STACK) {
                    status = STACK_OVERFLOW;
                } else {
                    Cell *next = cells + depth++;
                    memset(next, 0, sizeof *next);
                    next->type = INT;
                    next->length = 1;
                    next->words[0] = k;
                }
                break;
            case DUP:
                if (depth == STACK) status = STACK_OVERFLOW;
                else cells[depth] = *a, depth++;
                break;
            case SWAP: {
                Cell held = *a;
                *a = *b;
                *b = held;
                break;
            }
            case POP: depth--; break;
            case ADD: b->words[0] = wrap((uint32_t)b->words[0] + (uint32_t)a->words[0]), depth--; break;
            case SUB: b->words[0] = wrap((uint32_t)b->words[0] - (uint32_t)a->words[0]), depth--; break;
            case MUL: b->words[0] = wrap((uint32_t)b->words[0] * (uint32_t)a->words[0]), depth--; break;
            case DIV:
            case MOD:
                if (a->words[0] == 0) {
                    status = DIVISION_BY_ZERO;
                } else {
                    b->words[0] = (code == DIV ? floor_div : floor_mod)(b->words[0], a->words[0]);
                    depth--;
                }
                break;
            case MIN:
            case AND:
                if (a->words[0] < b->words[0]) b->words[0] = a->words[0];
                depth--;
                break;
            case MAX:
            case OR:
                if (a->words[0] > b->words[0]) b->words[0] = a->words[0];
                depth--;
                break;
            case ADDI: EACH(a, (uint32_t)w + (uint32_t)k) break;
            case SUBI: EACH(a, (uint32_t)w - (uint32_t)k) break;
            case MULI: EACH(a, (uint32_t)w * (uint32_t)k) break;
            case DIVI:
                if (k == 0) status = DIVISION_BY_ZERO;
                else EACH(a, floor_div(w, k))
                break;
            case MODI:
                if (k == 0) status = DIVISION_BY_ZERO;
                else EACH(a, floor_mod(w, k))
                break;
            case NEG: EACH(a, 0u - (uint32_t)w) break;
            case ABS: EACH(a, w < 0 ? 0u - (uint32_t)w : (uint32_t)w) break;
            case EQ: set_scalar(b, BOOL, b->words[0] == a->words[0]), depth--; break;
            case LT: set_scalar(b, BOOL, b->words[0] < a->words[0]), depth--; break;
            case GT: set_scalar(b, BOOL, b->words[0] > a->words[0]), depth--; break;
            case EQI: set_scalar(a, BOOL, a->words[0] == k); break;
            case LTI: set_scalar(a, BOOL, a->words[0] < k); break;
            case GTI: set_scalar(a, BOOL, a->words[0] > k); break;
            case EVEN: set_scalar(a, BOOL, (a->words[0] & 1) == 0); break;
            case NOT: a->words[0] = 1 - a->words[0]; break;
            case LEN: set_scalar(a, INT, a->length); break;
            case SUM: {
                uint32_t sum = 0;
                for (int32_t i = 0; i < a->length; i++) sum += (uint32_t)a->words[i];
                set_scalar(a, INT, wrap(sum));
                break;
            }
            case MAXL:
            case MINL:
            case HEAD:
            case LAST:
                if (a->length == 0) status = EMPTY_LIST;
                else if (code == MAXL) set_scalar(a, INT, largest(a, 1));
                else if (code == MINL) set_scalar(a, INT, largest(a, -1));
                else set_scalar(a, INT, a->words[code == HEAD ? 0 : a->length - 1]);
                break;
            case SORT: insertion_sort(a); break;
            case REV:
                for (int32_t i = 0, j = a->length - 1; i < j; i++, j--) {
                    int32_t held = a->words[i];
                    a->words[i] = a->words[j];
                    a->words[j] = held;
                }
                break;
            case TAKE: shorten(a, k < a->length ? k : a->length); break;
            case DROP: keep_range(a, k < a->length ? k : a->length, a->length); break;
            case FGT: KEEP(a, w > k); break;
            case FLT: KEEP(a, w < k); break;
            case FEVEN: KEEP(a, (w & 1) == 0); break;
            case SELECT:
                cells[depth - 3] = cells[depth - 3].words[0] ? *b : *a;
                depth -= 2;
                break;
        }
        if (status != OK) break;
    }
    *pc = slot;
    if (status == OK && depth > 0) *output = cells[depth - 1];
    else memset(output, 0, sizeof *output);
    return status;
}

/* Programs [count, SLOTS] on `examples` inputs each [count, examples, 2]; results [count, examples]. */
void run_programs(int64_t count, int64_t examples, const int32_t *op, const int32_t *arg, const int32_t *type,
                  const int32_t *length, const int32_t *words, int32_t *out_type, int32_t *out_length,
                  int32_t *out_words, int32_t *status, int32_t *pc) {
    for (int64_t lane = 0; lane < count * examples; lane++) {
        const int64_t program = lane / examples * SLOTS;
        Cell inputs[2], output;
        for (int64_t i = 0; i < 2; i++) {
            inputs[i].type = type[2 * lane + i];
            inputs[i].length = length[2 * lane + i];
            memcpy(inputs[i].words, words + (2 * lane + i) * WIDTH, sizeof inputs[i].words);
        }
        status[lane] = run(op + program, arg + program, inputs, &output, pc + lane);
        out_type[lane] = output.type;
        out_length[lane] = output.length;
        memcpy(out_words + lane * WIDTH, output.words, sizeof output.words);
    }
}
